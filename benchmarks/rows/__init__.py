"""One module a row of the table: what it compares and how."""
