"""What the memory of huge arrays costs: on this machine, and in a program."""
