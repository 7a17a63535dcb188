"""The programs: roles over the ports, and the commands that start them."""
