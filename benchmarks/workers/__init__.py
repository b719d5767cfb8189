"""Workers with an empty handler, each a program; `drain` gives them a full queue."""
