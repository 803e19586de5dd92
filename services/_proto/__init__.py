"""Code that protoc made from `services/proto`; `make proto` makes it again."""
