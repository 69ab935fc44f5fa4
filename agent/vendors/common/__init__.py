"""Code that several vendors share. All but `vendor_settings` needs only the standard library and the API."""
