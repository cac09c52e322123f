"""Many runs: the store they are kept in, and what is drawn of them."""
