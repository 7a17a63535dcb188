"""The rows `gpu` and `gpu-rehearsal`, and the processes of their parts."""
