"""Bytes that outlive a process: blocks of weights, images, patches and record logs."""
