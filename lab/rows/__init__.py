"""One module for each row of the table: what it measures and what it compares that with."""
