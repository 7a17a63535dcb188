"""Studies: experiments that produce a report.

plan (cells, in the order in which they matter) --> ledger (one line a cell, all cores, resumable) --> CSV,
PNG, report
"""
