"""`python -m reclock.cli`: the command `reclock`."""

from reclock.cli import main

main()
