"""Text, terminals and pictures: what every display shares."""
