"""Cuts the power under storage, at any system call, and judges what the next start finds on the disk."""
