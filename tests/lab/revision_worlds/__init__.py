"""Random worlds in which code is corrected under its name; `python -m tests.lab.revision_worlds`."""
