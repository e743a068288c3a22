"""Readers of everything that data comes in: files, folders, tables, public sets, a folder for each client."""
