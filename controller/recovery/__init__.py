"""What this replica's audit log knows better than a store that was lost or put back."""
