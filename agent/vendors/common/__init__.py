"""Code that several vendors share. All but `setting_values` needs only the standard library and the API."""
