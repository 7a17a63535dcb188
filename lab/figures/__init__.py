"""What a figure is, its table, and how seconds, memory and energy are measured."""
