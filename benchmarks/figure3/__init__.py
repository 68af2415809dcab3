"""Figure 3 of the Linformer paper, made from our records: runs, verdicts on the paper's claims, table and picture."""

from figure3.cells import Figure as Figure
from figure3.cells import read_figure as read_figure
from figure3.page import figure3_data as figure3_data
from figure3.page import figure3_page as figure3_page
