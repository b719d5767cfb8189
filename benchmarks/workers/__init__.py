"""Workers with an empty handler, each a program of its own: `drain` gives them a full queue."""
