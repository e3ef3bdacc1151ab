"""What a user of the server touches: launch, routes."""
