"""One module for each row of the table: its measurement and its baseline."""
