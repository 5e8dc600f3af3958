"""What a stage that is lost costs a listener, by how much of the answer there was."""
