"""A peer on a machine with a wrong clock: python wrong_clock.py FILE SECONDS python -m peers.cli WORDS...

While FILE exists, `time.time` of this process and of its forks is SECONDS ahead. p2pd keeps the machine's
time: it compares it with nobody's.
"""

import runpy
import sys
import time
from pathlib import Path

right = time.time
switch, ahead = Path(sys.argv[1]), float(sys.argv[2])
time.time = lambda: right() + ahead * switch.exists()
del sys.argv[1:5]
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
