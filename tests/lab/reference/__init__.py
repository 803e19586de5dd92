"""The reference model: what must be stored after each plan, by a plain fold over records and stored plans.

It imports nothing of the package but chains and the wire format: an oracle shares no code with what it judges.
"""
