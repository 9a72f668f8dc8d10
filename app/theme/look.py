"""Colours, fonts and style sheet of the page: system fonts only, so that nothing is fetched from elsewhere."""

from pathlib import Path

import gradio as gr

CSS_FILE = Path(__file__).with_name("page.css")
ICON_FILE = Path(__file__).with_name("icon.png")

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
MONO_FONTS = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


def theme() -> gr.themes.Base:
    """The page's Gradio theme; light or dark as the reader's system is."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=FONTS,
        font_mono=MONO_FONTS,
    ).set(
        body_background_fill="*neutral_50",
        body_background_fill_dark="*neutral_950",
        block_background_fill="white",
        block_background_fill_dark="*neutral_900",
        body_text_color_subdued="*neutral_500",
        body_text_color_subdued_dark="*neutral_400",
        color_accent_soft="*primary_50",
        color_accent_soft_dark="*primary_900",
        border_color_accent_subdued="*primary_200",
        border_color_accent_subdued_dark="*primary_800",
    )
