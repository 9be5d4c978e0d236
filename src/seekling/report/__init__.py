"""Run folders to tables, curves and one self-contained HTML page; reads files only."""
