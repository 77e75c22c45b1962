"""What an operator asks and does: how a store stands, what is wrong with it, how a model goes."""
