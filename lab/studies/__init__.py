"""Studies: experiments that produce a report.

plan (cells, by importance) --> ledger (one line a cell, all cores, resumable) --> CSV, PNG, report
"""
