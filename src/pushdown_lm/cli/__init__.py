"""The commands of `pushdown`, one module a group; heavy imports happen inside the commands."""
