"""Real swarms to measure: peers of this machine, their lines, and faults that strike them."""
