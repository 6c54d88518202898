"""What is set, and by whom: the numbers that paths depend on, profiles, arguments, launchers, packages."""
