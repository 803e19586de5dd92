"""What a version has written, kept so that later versions are tested against it.

`python -m tests.compatibility` writes the folder of the version in pyproject.toml, once, when that version is released. Later
versions only read it, by tests/protocol/test_kept_files.py. A folder is removed when no supported version writes its formats.
"""
