"""What a user holds: `SpMatrix`, how any matrix becomes one, and the policy it is planned by."""
