"""Registrations with the kubelet: held, made anew, and taken by others."""
