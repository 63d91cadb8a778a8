"""Operations of the controller."""
