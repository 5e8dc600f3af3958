"""What starting all processes of a deployment costs."""
