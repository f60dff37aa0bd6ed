"""Selection, advantages, losses and estimators as pure functions of arrays, and the table of the budget's members."""
