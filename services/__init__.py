"""Example services: compose flows, configure them, run them. Not part of the wheel."""
