"""The user's matrix: `SpMatrix`, the conversion of any matrix to one, and the policy of its plan."""
