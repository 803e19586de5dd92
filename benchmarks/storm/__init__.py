"""Every system under the same crashes of its upstream: who is still right afterwards (`make storm`).

- `facts` has what happens, `faults` what goes wrong and when, both drawn from a seed; `oracle` judges. These three share no code with
  sqe-chain;
- `system` is what a system has to provide, `systems` lists them, `republisher` is the program upstream that all of them read from;
- `running` runs one system through one storm, `roles` has the lives of its two programs, `watching` reads the topics from outside;
- `outcome` has the verdict, `ledger` keeps it, `results` makes the table and the picture;
- `flows` has our computation, the directories have those of the others.
"""
