# Headers, both libraries, find_package(kda) and pkg-config. cli/ installs the command.
include(CMakePackageConfigHelpers)

install(TARGETS kda_shared kda_static EXPORT kdaTargets)
install(DIRECTORY include/kda TYPE INCLUDE)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kda)
install(EXPORT kdaTargets NAMESPACE kda:: DESTINATION ${package_dir})
configure_package_config_file(cmake/kdaConfig.cmake.in ${PROJECT_BINARY_DIR}/kdaConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
# Before 1.0 a new minor version may break callers.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kdaConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kdaConfig.cmake ${PROJECT_BINARY_DIR}/kdaConfigVersion.cmake
  DESTINATION ${package_dir})

# The .pc file finds its prefix from where it lies, so that an installed tree can be moved.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH KDA_PC_PREFIX /prefix/${pc_dir} /prefix)
string(REGEX REPLACE "/$" "" KDA_PC_PREFIX ${KDA_PC_PREFIX})
configure_file(cmake/kda.pc.in ${PROJECT_BINARY_DIR}/kda.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kda.pc DESTINATION ${pc_dir})
