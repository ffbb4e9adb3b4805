"""Running a loop over steps so that acting and stepping overlap."""
