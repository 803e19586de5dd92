"""What several tests share: example flows, pipelines in memory and as processes, servers, faults, checks."""
