"""What was run to find out whether the promise holds, written down as it ran; docs/reliability.md is made of that."""
