"""Wings: tables, files, the write-ahead log, development servers. They plug in by entry points; the core imports none of them."""
