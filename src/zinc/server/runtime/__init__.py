"""The models a server has loaded, and the thread that runs the engine of each. No HTTP."""
