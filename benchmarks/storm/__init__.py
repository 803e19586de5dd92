"""Every system under the same crashes of its upstream: who is still right afterwards (`make storm`).

- `facts` has what happens, `faults` what goes wrong and when, both drawn from a seed; `oracle` judges. These three share no code with
  sqe-chain;
- `systems` lists the systems, `republisher` is the program upstream that all of them read from;
- `running` runs one system through one storm, `watching` reads the topics from outside, `results` makes the table and the picture;
- `flows` has our computation, the directories have those of the others.
"""
