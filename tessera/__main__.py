"""`python -m tessera` is `tessera`."""

from tessera.cli import main

main()
