"""Generated from the .proto files: `make proto` writes it again."""
