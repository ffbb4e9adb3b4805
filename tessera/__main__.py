"""`python -m tessera` is `tessera`."""

from tessera.cli.main import main

main()
