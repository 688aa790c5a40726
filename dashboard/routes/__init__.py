"""The addresses that the root URLconf includes."""
